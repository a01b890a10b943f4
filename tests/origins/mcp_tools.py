#!/usr/bin/env python3
"""An MCP server over streamable HTTP, by the `mcp` package, with a tool to allow and one to deny, at /mcp."""

import asyncio

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings

from listening import arguments, listener, ready

server = MCPServer("openshell-test", log_level="WARNING")


@server.tool()
def read_note(name: str) -> str:
    """Reads a note."""
    return f"note {name}: reached"


@server.tool()
def delete_note(name: str) -> str:
    """Deletes a note."""
    return f"note {name}: deleted"


@server.tool()
async def count(steps: int, context: Context) -> str:
    """Counts, and reports each step while it does."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps)
        await asyncio.sleep(0.05)
    return f"counted to {steps}"


class Announcing(uvicorn.Server):
    """Says so once it listens."""

    async def startup(self, sockets=None):
        await super().startup(sockets)
        ready(sockets[0].getsockname()[1])


if __name__ == "__main__":
    given = arguments(__doc__)
    # It is reached by names of the test's own, which its guard against DNS rebinding does not know.
    app = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    config = uvicorn.Config(
        app, log_level="warning", ssl_certfile=given.cert, ssl_keyfile=given.key, timeout_graceful_shutdown=1
    )
    Announcing(config).run(sockets=[listener(given)])
