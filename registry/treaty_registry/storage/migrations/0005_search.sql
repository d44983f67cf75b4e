-- Search in bounded time. Derived like 0002; see the module `retrieval`.

-- Under which words a protocol is found, the first 1,024 of its card. `place` says how much a word is what it is about: 3 for title
-- and name, 2 for tags and topic, 1 for the summary, 0 for the namespace. A word that begins with '/' is a topic that the protocol is in, '/' being all.
create table postings (
  word text collate "C" not null,
  place smallint not null,
  index bigint not null,
  primary key (word, place, index)
);

-- How many protocols are found under each word.
create table words (
  word text collate "C" primary key,
  uses bigint not null
);

drop index protocols_terms;
insert into postings
  select term.lexeme, ascii('D') - ascii((select min(weight) from unnest(term.weights) as weight)), protocols.index
  from protocols cross join lateral unnest(protocols.terms) as term
  where term.positions[1] <= 1024
  union all
  select '/' || array_to_string((string_to_array(protocols.topic, '/'))[1:depth], '/'), 0, protocols.index
  from protocols cross join generate_series(0, array_length(string_to_array(protocols.topic, '/'), 1)) as depth;
insert into words select word, count(*) from postings group by word;
