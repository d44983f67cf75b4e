-- How well the network understands itself at the end of an epoch, by its roll (treaty_consensus.election.roll): sums of w · w' in
-- units of 2^-64, over the pairs of principals that report in a topic (`pairs`), and over those that could speak its consensus at once
-- (`able`). Null where the roll says nothing, or once its bytes were withdrawn.
alter table rolls add column able numeric, add column pairs numeric;
