#!/usr/bin/env python3
"""Prints a random irregular fat tree as a netlist: _trees.py SEED

The tree has two levels of switches and 8 to 60 hosts, host1 to hostN in this order.  Some 15 % of the cables between
leaves and spines are missing, and some are doubled, but the tree is connected.
"""
import random
import sys

chance = random.Random(int(sys.argv[1]))
host_count = chance.randint(8, 60)
leaf_count = chance.randint(3, max(3, host_count // 4))
spine_count = chance.randint(2, 8)
missing = 0.15

leaves = [f"leaf{i + 1}" for i in range(leaf_count)]
spines = [f"spine{i + 1}" for i in range(spine_count)]
neighbors = {name: [] for name in leaves + spines}  # (neighbor, its port), in the order of the own ports


def connect(a, b):
    neighbors[a].append((b, len(neighbors[b]) + 1))
    neighbors[b].append((a, len(neighbors[a])))


for leaf in leaves:
    for spine in spines:
        # The cables of the first leaf and of the first spine keep the tree connected.
        must_exist = leaf == leaves[0] or spine == spines[0]
        if must_exist or chance.random() >= missing:
            for _ in range(2 if chance.random() < 0.1 else 1):
                connect(leaf, spine)
hosts = [f"host{i + 1}" for i in range(host_count)]
for host in hosts:
    neighbors[host] = []
    connect(chance.choice(leaves), host)
for name, ports in neighbors.items():
    print("Hca" if name in hosts else "Switch", len(ports), f'"{name}"')
    for number, (other, port) in enumerate(ports, 1):
        print(f'[{number}]\t"{other}"[{port}]')
    print()
