-- The newest vouch of each DID for each other one, unless it was withdrawn. A number for readers: which of them count is for the
-- election.
create table vouches (
  author text collate "C" not null,
  subject text collate "C" not null,
  seq bigint not null,
  index bigint not null,
  statement bytea not null,
  primary key (author, subject)
);
create index vouches_newest on vouches (author, index);

-- In which epoch a leaf is: the one after that of the newest decision before it.
create index decisions_index on decisions (index);
