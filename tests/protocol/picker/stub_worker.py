"""Stands for a worker that starts as its id says: `silent` never reports, another one ends with exit code 3."""

import sys
import time

if b"silent" in sys.stdin.buffer.read():
    time.sleep(3600)
sys.exit(3)
