"""The moving middle of a server: sessions, credits, assignment, batchers, wake-ups.

    rpc ── submit ──> Batcher ── one transaction a batch, on a store thread ──> usecase
     ^                                                                            |
     └── Session.out <── Leaser (which lane, which session, how many) <── wake ───┘

Everything here runs on the event loop except what batchers flush; nothing here is the truth. Lanes
that may hold a task are marked hot by what this process committed, by notifications of other
servers, and, as the truth, by the statement `due` once a second.
"""
