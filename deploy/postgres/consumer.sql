-- Roles and schemas of a consumer's database, for psql, once, as a superuser:
--   lockstep_owner     owns the tables and applies the migrations; no service uses it while it serves
--   lockstep_consumer  reads and writes Lockstep's tables, reads, inserts and updates the projection; no DDL
--
--   psql -d consumer -v owner_password=… -v service_password=… -f consumer.sql
--
-- In the compose deployment the passwords come from files.
\set ON_ERROR_STOP on
\if :{?owner_password} \else \set owner_password `cat /run/secrets/owner.password` \endif
\if :{?service_password} \else \set service_password `cat /run/secrets/service.password` \endif

CREATE ROLE lockstep_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE lockstep_consumer LOGIN PASSWORD :'service_password';

-- The migrations remember in schema public how far they are.
GRANT CREATE, USAGE ON SCHEMA public TO lockstep_owner;
-- They say CREATE SCHEMA IF NOT EXISTS, which asks for this even where the schema is there.
GRANT CREATE ON DATABASE :"DBNAME" TO lockstep_owner;

-- bills and scores are the bundled snapshot projections; leave them out where refresh.projections names none.
CREATE SCHEMA lockstep AUTHORIZATION lockstep_owner;
CREATE SCHEMA bills AUTHORIZATION lockstep_owner;
CREATE SCHEMA scores AUTHORIZATION lockstep_owner;
GRANT USAGE ON SCHEMA lockstep, bills, scores TO lockstep_consumer;
ALTER DEFAULT PRIVILEGES FOR ROLE lockstep_owner IN SCHEMA lockstep, bills, scores GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO lockstep_consumer;
ALTER DEFAULT PRIVILEGES FOR ROLE lockstep_owner IN SCHEMA lockstep, bills, scores GRANT USAGE, SELECT ON SEQUENCES TO lockstep_consumer;

-- The bundled example's projection. With a table of your own: the same two grants on it. Nothing is ever deleted there.
CREATE SCHEMA hall AUTHORIZATION lockstep_owner;
GRANT USAGE ON SCHEMA hall TO lockstep_consumer;
ALTER DEFAULT PRIVILEGES FOR ROLE lockstep_owner IN SCHEMA hall GRANT SELECT, INSERT, UPDATE ON TABLES TO lockstep_consumer;
