-- Facets of search, derived like 0002; see the modules `facets` and `handler_facts`.

-- What the blobs of a handler say: the kind of identity that signed its bundle, and how many operations its vectors reach. Null when the
-- bytes say nothing, or were withdrawn.
alter table handlers add column signer text;
alter table handlers add column coverage text;
create index handlers_wheel on handlers (wheel);
create index handlers_bundle on handlers (bundle);

-- The facets under which a protocol has a posting, all of which begin with '='.
alter table protocols add column facets text[] not null default '{}';
