-- Roles and schemas of a center's database, for psql, once, as a superuser:
--   lockstep_owner    owns the tables and applies the migrations; no service uses it while it serves
--   lockstep_center   reads and writes the center's own tables; no DDL
--   lockstep_source   reads the system of record, and nothing else
--
--   psql -d center -v owner_password=… -v service_password=… -v source_password=… -f center.sql
--
-- In the compose deployment the passwords come from files.
\set ON_ERROR_STOP on
\if :{?owner_password} \else \set owner_password `cat /run/secrets/owner.password` \endif
\if :{?service_password} \else \set service_password `cat /run/secrets/service.password` \endif
\if :{?source_password} \else \set source_password `cat /run/secrets/source.password` \endif

CREATE ROLE lockstep_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE lockstep_center LOGIN PASSWORD :'service_password';
CREATE ROLE lockstep_source LOGIN PASSWORD :'source_password';

-- The migrations remember in schema public how far they are.
GRANT CREATE, USAGE ON SCHEMA public TO lockstep_owner;
-- They say CREATE SCHEMA IF NOT EXISTS, which asks for this even where the schema is there.
GRANT CREATE ON DATABASE :"DBNAME" TO lockstep_owner;

CREATE SCHEMA lockstep AUTHORIZATION lockstep_owner;
GRANT USAGE ON SCHEMA lockstep TO lockstep_center;
ALTER DEFAULT PRIVILEGES FOR ROLE lockstep_owner IN SCHEMA lockstep GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO lockstep_center;
ALTER DEFAULT PRIVILEGES FOR ROLE lockstep_owner IN SCHEMA lockstep GRANT USAGE, SELECT ON SEQUENCES TO lockstep_center;

-- The bundled example's system of record. With tables of your own: the same two grants on them.
CREATE SCHEMA answers AUTHORIZATION lockstep_owner;
GRANT USAGE ON SCHEMA answers TO lockstep_source;
ALTER DEFAULT PRIVILEGES FOR ROLE lockstep_owner IN SCHEMA answers GRANT SELECT ON TABLES TO lockstep_source;
