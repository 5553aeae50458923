"""What a watcher that reads files doesn't pay for."""

import subprocess
import sys


def test_kubernetes_asyncio_is_not_imported_before_it_is_used() -> None:
    """It takes half a second and 40 MB: only `connect` loads it."""
    code = "import services.watcher.kubernetes.client, sys; print('kubernetes_asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
