"""Write a protocol from a class.

class_project       the project: manifest, document and vectors
class_document      the document
described_method    one operation: what a method's hints and docstring say
exchange            the vectors: calls between two sessions of the protocol
two_roles           the manifest of a requester and a provider
checked_files       writing the files of a project that passes its check
"""
