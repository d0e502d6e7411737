"""An MCP server that answers questions from qa-cluster (extra `mcp`): `qa-cluster mcp`."""
