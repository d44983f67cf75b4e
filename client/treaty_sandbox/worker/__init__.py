"""Run a handler's code inside the sandbox.

    main      the worker's program: it answers the host's requests
    framing   the frames between host and worker, used by both
    wasm      run a WebAssembly module in the place of a Python handler
    importer  import a handler package from memory
    seccomp   the filter of system calls

The host mounts this folder, `treaty_handler`, `msgspec` and, where it is installed, `wasmtime` beside the standard library and
starts `main.main`. The sandbox holds no other part of Treaty, so these modules import no other part.
"""
