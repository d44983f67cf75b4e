-- Lists of a topic in bounded time. Derived like 0002.

-- Every topic with a protocol, and how many protocols it has.
create table topics (
  topic text collate "C" primary key,
  protocols bigint not null
);
insert into topics select topic, count(*) from protocols group by topic;

-- The oldest versions with a document, in a topic and everywhere: a document may be published any number of times.
create index protocols_candidates on protocols (topic, document, index);
drop index protocols_document;
create index protocols_document on protocols (document, index);
