"""Where h2spec, the conformance test of HTTP/2 servers, comes from: `go install`, once for each user."""

from tests.kubernetes.deploy.tools import Tool

H2SPEC = Tool("h2spec", "github.com/summerwind/h2spec/cmd/h2spec", "2.2.1+incompatible", {"h2spec": ()})
REQUIRE = "POINTSMAN_REQUIRE_H2SPEC"
"""Set to 1: tests that can't have it fail, instead of being skipped."""
