"""Saturation detectors, and flow control: requests wait in queues and leave them fairly, across all pickers. Pure."""
