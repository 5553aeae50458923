"""Profile handlers."""
