"""Services that every process needs: logging, periodic tasks, reporting once, interpreter settings."""
