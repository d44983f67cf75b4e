-- Other orders of search: by use and by name. `pairs`: the pairs of principals whose reports on the document count in the newest
-- decision of its topic. Until the next decision, or a rebuild, they are 0.
alter table protocols add column pairs bigint not null default 0;
create index protocols_by_use on protocols (pairs desc, index desc);
create index protocols_by_name on protocols (name, namespace, index);
