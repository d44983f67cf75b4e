"""The inside of the sandbox: the one process that runs a handler's code.

The host mounts this folder, `treaty_handler` and `msgspec` beside the standard library and starts `main.main`; nothing else
of Treaty is in there, so nothing here imports anything else. `framing` is also the host's end of the pipe.
"""
