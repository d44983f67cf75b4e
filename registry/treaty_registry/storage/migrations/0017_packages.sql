-- The wheels of a publisher as packages of an index (`catalogue.package_index`), found by file name. An earlier release goes on beside it.

-- What METADATA of a wheel says: its SHA-256, and the Pythons that it wants. Null when the bytes were withdrawn, and in rows of an earlier
-- release until a rebuild.
alter table handlers add column metadata bytea;
alter table handlers add column requires_python text;
create index handlers_files on handlers (publisher, filename collate "C", index);
