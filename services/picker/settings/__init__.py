"""The settings of a picker, and the limits that they become."""
