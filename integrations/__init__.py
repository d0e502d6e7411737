"""Adapters to other systems. Each folder except `service` is one adapter, which an optional extra installs. An adapter
imports only the core and its own modules. The adapters of frameworks also import `service`."""
