"""The pages that people read. Each is at the URI of the resource that it shows, and a browser gets it by `Accept`."""
