"""Compare two versions of a protocol: can an agent of one talk to an agent of the other?

versions            all parts of two packages, and both verdicts
containment         whether a reader accepts each value of a writer, or a value that it refuses
closing             the schema of the values that a writer sends
near_values         values to try, near the limits of schemas; pattern_texts for patterns
subschemas          the schemas that judge one value
conversation        sessions between a caller of one version and a provider of the other, in memory
"""
