DROP TABLE lockstep.delivery;
DROP TABLE lockstep.delivery_position;
