"""One session of an agent, from the connection to the business function.

`driver` joins a connection, the state machine and a handler. `hosting` gives the handler its events and does what it asks for;
`runtime` is where it runs, `store` what it keeps. `sides` is what the agent stands for on either side, `agreements` what it
remembers,
`ports` what all this needs of others, `timing` how long all may take. `session` is what an application sees.
"""
