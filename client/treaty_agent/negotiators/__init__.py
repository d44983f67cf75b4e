"""Decide an agent's part in a negotiation: the interface `Negotiator`, and its implementation with a language model.

    negotiator         the interface and its verdicts; the machine (`treaty_anp.hello_profile`) decides when each is allowed
    model_negotiator   the negotiator that asks a language model; it writes a handler until the handler passes
    questions          a prompt for each request, and the strict reading of the answers
    prompts            the reviewed texts for the model
    language_model     the interface of a language model, and its budget
    openai             a language model behind an HTTP endpoint
    package            the project and the wheel of a written handler
    handler_check      try a handler in the sandbox
    test_cases         the format of test cases, and the functions that they must fit
    documents          a proposed text and its base

No module here touches a connection.
"""
