"""How our texts are tidied."""


def tidy(row):
    """Return a conversation without blanks at the ends of its turns."""
    return {"messages": [{**turn, "content": turn["content"].strip()} for turn in row["messages"]]}
