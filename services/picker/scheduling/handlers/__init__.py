"""Profile handlers, one a file."""
