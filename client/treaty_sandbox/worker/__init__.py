"""Run a handler's code inside the sandbox.

    main                              the worker's program: it answers the host's requests
    template                          fork workers
    framing                           the frames between host and worker, used by both
    importer, library                 import a handler package, or the standard library, from memory
    confinement, namespaces, process  the levels of isolation, as a worker applies them to itself
    seccomp, landlock, kernel         restrict this process

The host mounts this folder, `treaty_handler` and `msgspec` beside the standard library and starts `main.main`. The sandbox holds
no other part of Treaty, so these modules import no other part.
"""
