"""EndpointPickerConfig: its schema, its loading with every error at once, its defaults."""
