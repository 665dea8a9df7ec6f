"""Everything that speaks to PostgreSQL; nothing above sees SQL or a psycopg error."""
