"""Write protocols: templates, checks, coverage, recorded vectors and typed stubs.

templates   the files of a new project
check       all that publishing would check, with all problems at once; hostile messages too
document    the part of a document that follows from the manifest, and the comparison of its prose
manifest    the problems of a manifest, member by member
coverage    the operations, roles and outcomes that vectors reach
stubs       typed Python for the operations of a protocol
"""
