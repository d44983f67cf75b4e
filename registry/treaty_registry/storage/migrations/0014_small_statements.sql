-- Fewer bytes for a statement. Each of these changes is of the catalogue of PostgreSQL alone: it takes a moment in a table of any
-- size, and an earlier release goes on beside it.

-- `authors_kind` has all that this index had: the newest statements of a DID are read kind by kind.
alter table authors drop constraint authors_pkey;

-- The id is in `leaves`, under the same index. Null in new rows; a later migration drops the columns.
alter table ballots alter column statement drop not null;
alter table vouches alter column statement drop not null;
