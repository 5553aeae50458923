"""What the tiers agree on: the model, the attributes, the plugins, the configuration, the bus, the service."""
