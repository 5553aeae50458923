"""An HTTP/2 server for gRPC (RFC 9113, RFC 7541, and the document "gRPC over HTTP2")."""
