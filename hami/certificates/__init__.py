"""The self-signed CA and the serving certificate: deciding when to renew them, and storing them."""
