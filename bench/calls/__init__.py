"""One agent in four forms, and the driver that times their clients.

`*_server.py` and `*_caller.py` contain what the user of a form writes, and nothing for the measurement: `calling` counts their
lines. They run as scripts. Only those of Treaty run in this environment, the others in that of `rivals.lock`.
"""
