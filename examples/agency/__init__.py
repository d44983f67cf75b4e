"""A travel agency of six agents on six domains, with three protocols of its own. README.md tells how to run it."""
