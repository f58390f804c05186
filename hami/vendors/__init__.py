"""What differs between vendors. A vendor is one record; it is a function only where data cannot say it."""
