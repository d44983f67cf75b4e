"""Run a handler's code inside the sandbox.

    main      the worker's program: it answers the host's requests
    framing   the frames between host and worker, used by both
    importer  import a handler package from memory
    library   import the standard library from memory
    level, namespaces, process  the levels of isolation
    template  fork workers
    seccomp, landlock, kernel   restrict this process

The host mounts this folder, `treaty_handler` and `msgspec` beside the standard library and starts `main.main`. The sandbox holds
no other part of Treaty, so these modules import no other part.
"""
