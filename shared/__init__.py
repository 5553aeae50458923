"""What the tiers agree on: the model, the attributes, the plugins, the configuration, the bus, the shape of a service."""
