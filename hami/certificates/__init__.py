"""The self-signed CA and the serving certificate: when to renew them, and where they are stored."""
