#!/bin/sh
# Makes the role that servers connect as, and its database: owner of its own, no superuser.
# The image of PostgreSQL runs it once, on an empty volume.
set -eu
# The password travels by the environment: a command line is for everybody to read.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="${POSTGRES_USER:-postgres}" --dbname=postgres <<'SQL'
\getenv password TENURE_PASSWORD
create role tenure login password :'password';
create database tenure owner tenure;
SQL
