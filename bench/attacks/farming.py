def figures(lab):
    yield from ()
