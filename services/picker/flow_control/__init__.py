"""Flow control: requests wait in queues and leave them fairly, across all pickers. Pure: no I/O, no clock."""
