"""What every process needs: log format, periodic tasks, interpreter settings."""
