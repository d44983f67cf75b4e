-- The fact of the log's keys (treaty_consensus.facts.KeysFact), which logs of earlier releases do not have: the keys of the genesis.
-- A log without a genesis gets it with its first leaf.
insert into facts (key, fact)
select 'keys', convert_to(
  format(
    '{"type":"keys","terms":[{"log_key":%s,"clock_key":%s,"since":0,"until":0}]}',
    to_json(genesis -> 'body' ->> 'log_key'), to_json(genesis -> 'body' ->> 'clock_key')
  ),
  'UTF8'
)
from (
  select convert_from(decode(convert_from(leaf, 'UTF8')::json ->> 'payload', 'base64'), 'UTF8')::json as genesis
  from leaves where index = 0
) first
on conflict (key) do nothing;
