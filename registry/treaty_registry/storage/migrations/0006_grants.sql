-- Every grant statement. `ended`: the leaf that ended the grant, null while it is in force: a newer statement of the pair, its own
-- leaf if it takes a grant back, or the first identity of owner or grantee in a new tenure.
alter table grants drop constraint grants_pkey;
alter table grants add primary key (namespace, grantee, index);
alter table grants add column ended bigint;
create index grants_owner on grants (owner) where ended is null;
