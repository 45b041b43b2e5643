"""Procedural stand-ins in RoboTwin's object format: a first port, to be replaced."""
# ruff: noqa

from __future__ import annotations

from pathlib import Path


def build_objects(folder: Path) -> None:
    """Writes ``visual/baseN.glb``, ``collision/baseN.glb`` and ``model_dataN.json`` for each object."""
    OUT=folder; P3=None
    import json,numpy as np,trimesh
    P=np.array([[0,0,1],[1,0,0],[0,1,0]],float)        # R(q=[.5,.5,.5,.5]): local -> world at the nominal pose
    T=np.array([[0,0,1],[-1,0,0],[0,-1,0]],float)      # RoboTwin: gripper frame = contact frame @ T
    def M(R,p): m=np.eye(4); m[:3,:3]=R; m[:3,3]=p; return m.tolist()
    def grip(approach,opening): x=np.array(approach,float); y=np.array(opening,float); return np.stack([x,y,np.cross(x,y)],1)
    def contact(p,approach,opening,R=P): return M(R.T@grip(approach,opening)@T.T,R.T@np.array(p,float))
    DOWN=np.diag([1.,-1,-1])
    def func(p,R=P,F=DOWN): return M(R.T@F,R.T@np.array(p,float))
    def cyl(r,h,z0=0,sec=24): m=trimesh.creation.cylinder(radius=r,height=h,sections=sec); m.apply_translation([0,0,z0+h/2]); return m
    def box(size,c): m=trimesh.creation.box(size); m.apply_translation(c); return m
    def paint(m,c): m=m.copy(); m.visual=trimesh.visual.TextureVisuals(material=trimesh.visual.material.PBRMaterial(baseColorFactor=[*[int(255*x) for x in c],255],metallicFactor=0.1,roughnessFactor=0.5)); return m
    def save(name,i,parts,contacts,functional,R=P,stable=True):
        d=OUT/name; (d/'visual').mkdir(parents=True,exist_ok=True); (d/'collision').mkdir(exist_ok=True)
        X=np.eye(4); X[:3,:3]=R.T; v=trimesh.Scene(); c=trimesh.Scene(); lo=[];hi=[]
        for k,(m,col) in enumerate(parts):
            m=m.copy(); m.apply_transform(X); v.add_geometry(paint(m,col),geom_name=f'v{k}'); c.add_geometry(m,geom_name=f'c{k}'); lo.append(m.bounds[0]); hi.append(m.bounds[1])
        v.export(d/'visual'/f'base{i}.glb'); c.export(d/'collision'/f'base{i}.glb'); lo=np.min(lo,0); hi=np.max(hi,0)
        json.dump(dict(center=((lo+hi)/2).tolist(),extents=(hi-lo).tolist(),scale=[1,1,1],target_pose=[],contact_points_pose=contacts,transform_matrix=np.eye(4).tolist(),
            functional_matrix=functional,contact_points_group=[list(range(len(contacts)))],contact_points_mask=[True],contact_points_discription=[],target_point_discription=[],functional_point_discription=[],orientation_point=[],stable=stable),open(d/f'model_data{i}.json','w'))
    def ring(r,t,h,z0,n=16):
        out=[]; w=2*r*np.tan(np.pi/n)*1.05
        for k in range(n):
            a=2*np.pi*k/n; m=trimesh.creation.box([t,w,h]); m.apply_transform(trimesh.transformations.rotation_matrix(a,[0,0,1])); m.apply_translation([(r-t/2)*np.cos(a),(r-t/2)*np.sin(a),z0+h/2]); out.append(m)
        return out
    TOP=lambda z,r=0: [contact([s*r,0,z],[0,0,-1],[1,0,0]) for s in (1,)]
    def rim(r,z): return [contact([r,0,z],[0,0,-1],[1,0,0]),contact([0,r,z],[0,0,-1],[0,1,0]),contact([-r,0,z],[0,0,-1],[-1,0,0]),contact([0,-r,z],[0,0,-1],[0,-1,0])]
    def sides(z,n=12): return [contact([0,0,z],[np.cos(a),np.sin(a),0],[-np.sin(a),np.cos(a),0]) for a in 2*np.pi*np.arange(n)/n]
    for i,c in enumerate([(.85,.7,.2),(.75,.75,.8)]):
        dome=trimesh.creation.icosphere(2,.034); vv=dome.vertices[dome.vertices[:,2]>-1e-6]; dome=trimesh.convex.convex_hull(np.vstack([vv,vv*[1,1,0]])); dome.apply_translation([0,0,.012])
        save('050_bell',i,[(cyl(.042,.012),(.1,.1,.1)),(dome,c),(cyl(.008,.01,.045),(.2,.2,.2))],TOP(.027),[func([0,0,.055])])
    cols=[(.9,.3,.25),(.25,.5,.9),(.95,.8,.3),(.4,.75,.45),(.7,.45,.85),(.95,.6,.3),(.5,.8,.85),(.85,.85,.85)]
    for i in range(13):
        r,h=.035+.002*(i%3),.085+.005*(i%2); save('021_cup',i,[(cyl(r,.005),cols[i%8])]+[(m,cols[i%8]) for m in ring(r,.004,h,0)],rim(r-.002,h-.02),[func([0,0,0])])
    for i in range(8): save('002_bowl',i,[(cyl(.05,.006),cols[i%8])]+[(m,cols[i%8]) for m in ring(.06,.005,.05,0,20)],rim(.0575,.035),[func([0,0,0])])
    save('019_coaster',0,[(cyl(.05,.006,0,32),(.45,.3,.2))],TOP(.006),[func([0,0,.006])])
    save('003_plate',0,[(cyl(.09,.01,0,32),(.95,.95,.97))],TOP(.01),[func([0,0,.01])])
    for i in range(23): save('001_bottle',i,[(cyl(.027,.13),cols[i%8]),(cyl(.013,.04,.13),(.95,.95,.95))],sides(.075)+[contact([0,0,.15],[0,0,-1],[1,0,0])],[func([0,0,0])])
    for i in range(6): save('080_pillbottle',i,[(cyl(.024,.07),(.95,.6,.2)),(cyl(.025,.02,.07),(.95,.95,.95))],sides(.05)+[contact([0,0,.075],[0,0,-1],[1,0,0]),contact([0,0,.075],[0,0,-1],[0,1,0])],[func([0,0,0])])
    import transforms3d as t3d
    RH=t3d.quaternions.quat2mat([0,0,.995,.105]); Z=.042    # hammer nominal pose: head forward (+y), handle along y, origin 4.2 cm above the table
    save('020_hammer',0,[(box([.03,.03,2*Z],[0,.07,0]),(.3,.3,.32)),(box([.018,.16,.02],[0,-.02,.0]),(.6,.4,.2)),(box([.018,.012,Z],[0,-.095,-Z/2]),(.6,.4,.2))],
       [contact([0,-.05,0],[0,0,-1],[1,0,0],RH),contact([0,-.05,0],[0,0,-1],[-1,0,0],RH)],[func([0,.07,-Z],RH)],R=RH)
