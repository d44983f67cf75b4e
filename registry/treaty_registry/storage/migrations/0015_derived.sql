-- The protocols whose documents change another one (their `base`). Most have none, so the index is small.
create index protocols_base on protocols (base, index) where base is not null;

-- Into the served records of their bases, as `projection.records` writes them: at most 32, in the order of publication.
update records set record = convert_to(left(convert_from(record, 'UTF8'), -1) || ',"derived":[' || derived.uris || ']}', 'UTF8')
from (
  select base, string_agg(to_json(uri)::text, ',' order by index) as uris
  from (select base, uri, index, row_number() over (partition by base order by index) as place from protocols where base is not null) p
  where place <= 32 group by base
) derived where records.uri = derived.base;
