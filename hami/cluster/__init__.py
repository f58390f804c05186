"""The API server: calls, watches, leases and events. The only room that imports ``kubernetes``.

It carries out what others have decided, and decides nothing about pods, nodes or devices itself.
"""
