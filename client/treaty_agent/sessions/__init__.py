"""Run the sessions of an agent, from the connection to the business function: one runtime for the Hello and the flow profile.

    endpoint          transports in and out, encryption, the agent's documents
    profiles          choose the profile of a connection, and translate a request for the flow profile
    lifecycle         make a session, run it, report it, escalate its failure
    session           the session that an application uses, the same under both profiles
    connection_loop   the task that drives a state machine over a connection
    hello_session     one session of the Hello profile                 flow_run        one connection of the flow profile
    code, conformance, negotiation    its parts                        flow_session    one of several sessions on it
    hello_core        what the parts share                             flow_core       what these sessions share
    roles             first message, code and memory of a Hello        flow_manager    all negotiations of an agent
                                                                       flow_context    settings, ids, keys
    calls             the application's calls, over any number of handlers
    handler_host      a handler's events, effects and state
    handler_context   what a handler's host knows of its session
    operations        the business functions

    context           what all sessions of an agent share
    served_protocols  the protocols that the agent provides, with their functions
    session_memory, session_reports, session_work    what it remembers, reports and runs
    provision         load and verify the protocols that the agent provides
    agreements        remember agreements and negotiated protocols
    escalation        ask a person after a negotiation failed
    interfaces        the interfaces to protocols, registries and names

A module imports only modules that do not import it, also for types.
"""
